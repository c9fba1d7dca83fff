"""The engine: runs any statistic over data, in one pass, on any number of devices."""
