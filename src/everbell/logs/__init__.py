"""The commands of the cluster in their order, behind one port (`logs.port`)."""
