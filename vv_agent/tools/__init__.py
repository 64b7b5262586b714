"""Tools: what an agent can do, and the rules about who may do it."""
