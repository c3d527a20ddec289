"""What groups call, for each kind of processor."""
