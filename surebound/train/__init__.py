"""Training: methods, schedules, and a loop that resumes to the same bits."""
