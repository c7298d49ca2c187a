"""Table-QA: the prompt that asks for SQL and the SQL in the answer."""
