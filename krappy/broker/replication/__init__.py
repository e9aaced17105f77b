"""How a broker of a cluster takes its part: it opens what it is assigned, takes its roles, and keeps its ISRs.

All of it follows the cluster's image; nobody calls this broker to tell it. `Lent` gives the parts what they need. A
broker that is alone has none of this: it leads all that it has.
"""
