// Package sqlstore stores tables in SQLite, which is embedded, or in PostgreSQL, with one set of statements and
// migrations for both: parameters are $1, $2 …, types are BIGINT, TEXT and BYTEA, and times are microseconds since
// 1970 in UTC. Every change is one serializable transaction with the store's own clock.
package sqlstore
