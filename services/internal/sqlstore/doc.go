// Package sqlstore stores tables in SQLite, which is embedded, or in PostgreSQL. Both use the same statements and
// migrations. Parameters are $1, $2 …, types are BIGINT, TEXT and BYTEA, and times are microseconds since 1970 in UTC.
// Every change is one serializable transaction and uses the store's clock.
package sqlstore
