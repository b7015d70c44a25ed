"""The processes of a job: how many, their lifecycle, causes of their ends, budgets."""
