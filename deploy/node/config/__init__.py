"""Define the settings of each role, collect their values, and build the configuration."""
