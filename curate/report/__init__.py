"""What a run left, for people: an HTML report and the data card of the shards."""

from curate.report.html import write_report

__all__ = ["write_report"]
