"""The only code of this room that touches drivers, sysfs and services. Each probe runs in a process of its own."""
