"""The interface: its rules, and the generated code."""
