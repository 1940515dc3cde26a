"""The code that speaks to each kind of target, behind one port (`channels.port`)."""
