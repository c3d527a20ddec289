"""What a plug-in for CPUs meets in vLLM 0.33, by the same names, for machines that have no vLLM."""
