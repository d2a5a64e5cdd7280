"""What `hifc bench` measures: ratios against a reference in the same run."""
