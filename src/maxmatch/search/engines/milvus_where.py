"""A filter as a Milvus expression.

Milvus compares a JSON value with a literal of another kind, or one that is not there, in ways that differ between its
versions for != and `not`. So only =, <, <=, >, >= and `in` are used, which never hold then, and `not` never stands
before them alone: what does not pass a comparison either passes the opposite one or has no value of that kind.
"""

import json

from maxmatch.search.where import All, Among, Any_, Begins, Comparison, Condition, Missing, Not, Operator, Value, kind_of
