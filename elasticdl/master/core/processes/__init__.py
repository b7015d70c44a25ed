"""The processes of a job: scaling, life cycle, causes of ends, budgets."""
