"""Where events are kept, behind one port (`stores.port`)."""
