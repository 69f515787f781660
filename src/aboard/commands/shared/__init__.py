"""What several commands use: findings, tables, progress, JSON, arguments that name nodes."""
