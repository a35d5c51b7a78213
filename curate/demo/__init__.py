"""The built-in demo corpus: databases, question/SQL pairs with known defects, and the truth beside them."""

from curate.demo.write import DemoSummary, write_demo

__all__ = ["DemoSummary", "write_demo"]
