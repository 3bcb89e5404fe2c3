"""The paper's tables and figures, made again: what is missing is trained, and stands beside what the paper reports."""
