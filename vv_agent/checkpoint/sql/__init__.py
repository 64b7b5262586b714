"""The SQL store, on SQLite and PostgreSQL; the one home of SQLAlchemy."""

from __future__ import annotations

from vv_agent.checkpoint.sql.store import SqlStore

__all__ = ["SqlStore"]
