"""The version of the project; a test compares it with CMakeLists.txt."""

__version__ = "0.1.0"
