"""The executor: runs the plans of the core on a device. It owns torch and makes no scheduling decision."""
