"""`inf eval`: a benchmark's questions, their answers' scores, and a report."""
