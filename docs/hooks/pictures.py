"""A picture that is a paragraph of its own becomes a link to its file, where it is seen enlarged.

On narrow screens, `site.css` lets it keep a width at which its letters can be read, and scrolls it.
"""

from __future__ import annotations

import re

PICTURE = re.compile(r'<p>(<img [^>]*src="([^"]+)"[^>]*>)</p>')


def on_page_content(html: str, **_: object) -> str:
    """Called with the HTML that a page's Markdown became."""
    return PICTURE.sub(r'<p><a class="picture" href="\2" title="enlarge">\1</a></p>', html)
