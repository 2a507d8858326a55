package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

var (
	// ErrConnectionUnknown means that there is no connection to a server.
	ErrConnectionUnknown = errors.New("the server is not connected")
	// ErrTooManyConnections means that the people of a tenant already have the maximum number of connections.
	ErrTooManyConnections = fmt.Errorf("the people of this tenant have %d connections, which is the maximum: an operator can delete connections that are not used any more", MaxConnections)
	// ErrConnectionChanged means that a connection was replaced, deleted or refreshed by another program.
	ErrConnectionChanged = errors.New("the connection has changed")
)

const (
	// MaxConnections is the maximum number of connections of all people in one tenant.
	MaxConnections = 20_000
	// deletedFor is how long a connection of a person stays stored after it was deleted. A connection that the person
	// makes later begins with generation 1. No gateway uses a deleted access token for so long.
	deletedFor = 24 * time.Hour
)

// Key identifies a connection.
type Key struct {
	// Server is the name of the server.
	Server string
	// Tenant and Person identify the person who uses the account. Both are empty if the account belongs to no person.
	Tenant, Person string
}

// Connection is a sign-in of the mesh at an MCP server.
type Connection struct {
	Key

	// Generation is at least 1. It increases with each new access token.
	Generation int64
	// Sealed contains the tokens and the OAuth client, encrypted by a [Sealer].
	Sealed []byte
	// Issuer identifies the authorization server. Scopes are the granted scopes, separated by spaces.
	Issuer, Scopes  string
	HasRefreshToken bool
	// AccountName is the name of the account in the ID token of the sign-in. It is empty if there was no ID token.
	AccountName string
	Connected   time.Time
	// ConnectedByTenant and ConnectedBy are the tenant and the subject of the person who has signed in.
	ConnectedByTenant, ConnectedBy string
	// Refreshed is when the access token was issued, and Expires when it expires. Expires is zero if this time is not
	// known.
	Refreshed, Expires time.Time
	// LoginRequired is true if the tokens can no longer be used. Problem is the error of the last refresh, or "" if the
	// refresh has succeeded.
	LoginRequired bool
	Problem       string
	// Lease is the replica that refreshes the connection, or "" if no refresh is in progress. If Lease is set, Problem is
	// the error of an earlier refresh. If the replica has ended, Lease does not change until the next refresh begins.
	Lease string
	// RefusedGeneration is the generation of the last access token that the server has refused and that could not be
	// replaced. It is 0 if there was none.
	RefusedGeneration int64
}

// IsRefused reports whether the server has refused the current access token, and the token could not be replaced.
func (c *Connection) IsRefused() bool {
	return c.RefusedGeneration != 0 && c.RefusedGeneration == c.Generation
}

// A Sealer returns the encrypted contents of a connection. generation is the generation under which the contents will
// be stored.
type Sealer func(generation int64) ([]byte, error)

// Connect stores a connection, and replaces an existing connection with the same key. It sets the generation, the
// contents and the times of the connection. The error can be [ErrTooManyConnections] or [sqlstore.ErrUnavailable].
func (s *Store) Connect(ctx context.Context, want Connection, seal Sealer) (stored Connection, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		old, err := readConnections(ctx, tx, ofKey, want.Server, want.Tenant, want.Person)
		if err != nil {
			return err
		}
		stored = want
		stored.Generation, stored.Connected, stored.Refreshed = 1, tx.Now, tx.Now
		if len(old) > 0 {
			stored.Generation = old[0].Generation + 1
		}
		if stored.Sealed, err = seal(stored.Generation); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM identity_connections "+ofKey, want.Server, want.Tenant, want.Person); err != nil {
			return err
		}
		if want.Person != "" {
			if err := makeRoom(ctx, tx, want.Tenant); err != nil {
				return err
			}
		}
		return insertConnection(ctx, tx, &stored)
	})
	return stored, err
}

// makeRoom deletes the rows of connections in a tenant that were deleted more than deletedFor ago. It returns
// [ErrTooManyConnections] if the tenant can't have another connection.
func makeRoom(ctx context.Context, tx *sqlstore.Tx, tenant string) error {
	_, err := tx.ExecContext(ctx, "DELETE FROM identity_connections WHERE tenant = $1 AND person <> '' AND sealed = $2 AND deleted < $3",
		tenant, []byte{}, sqlstore.Micros(tx.Now.Add(-deletedFor)))
	if err != nil {
		return err
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM identity_connections WHERE tenant = $1 AND person <> ''", tenant).Scan(&n); err != nil {
		return err
	}
	if n >= MaxConnections {
		return ErrTooManyConnections
	}
	return nil
}

func insertConnection(ctx context.Context, tx *sqlstore.Tx, c *Connection) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO identity_connections (server, tenant, person, generation, sealed, issuer, scopes, has_refresh_token,
		connected, connected_by_tenant, connected_by, refreshed, expires, login_required, problem, lease, lease_until, refused_generation, deleted, account_name)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 0, '', '', 0, 0, 0, $14)`,
		c.Server, c.Tenant, c.Person, c.Generation, c.Sealed, c.Issuer, c.Scopes, number(c.HasRefreshToken), sqlstore.Micros(c.Connected),
		c.ConnectedByTenant, c.ConnectedBy, sqlstore.Micros(c.Refreshed), microsOrZero(c.Expires), c.AccountName)
	return err
}

// Connection returns the connection with the given key. The error can be [ErrConnectionUnknown] or
// [sqlstore.ErrUnavailable].
func (s *Store) Connection(ctx context.Context, of Key) (found Connection, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		found, err = readConnection(ctx, tx, of)
		return err
	})
	return found, err
}

// Connections returns all connections whose accounts belong to no person, sorted by server.
func (s *Store) Connections(ctx context.Context) (all []Connection, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		all, err = readConnections(ctx, tx, "WHERE person = '' ORDER BY server")
		return err
	})
	return all, err
}

// ConnectionsOfPeople returns connections of people, sorted by server, tenant and person. It returns at most limit
// connections whose keys come after the given key. If tenant or person is not empty, it returns only connections of
// this tenant or person.
func (s *Store) ConnectionsOfPeople(ctx context.Context, after Key, tenant, person string, limit int) (page []Connection, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		page, err = readConnections(ctx, tx, `WHERE person <> '' AND (server > $1 OR server = $1 AND (tenant > $2 OR tenant = $2 AND person > $3))
			AND ($4 = '' OR tenant = $4) AND ($5 = '' OR person = $5) ORDER BY server, tenant, person LIMIT $6`,
			after.Server, after.Tenant, after.Person, tenant, person, limit)
		return err
	})
	return page, err
}

// CountConnectionsOfPeople returns how many connections of people can be used, and how many need another sign-in.
// Deleted connections do not count.
func (s *Store) CountConnectionsOfPeople(ctx context.Context) (usable, loginRequired int64, err error) {
	var all int64
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT COUNT(CASE WHEN login_required = 0 AND refused_generation <> generation THEN 1 END), COUNT(*) FROM identity_connections
			WHERE person <> '' AND sealed <> $1`, []byte{}).Scan(&usable, &all)
	})
	return usable, all - usable, err
}

// Disconnect deletes the tokens of a connection. The row stays, because no other connection may use its generation
// again. The error can be [ErrConnectionUnknown] or [sqlstore.ErrUnavailable].
func (s *Store) Disconnect(ctx context.Context, of Key) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		found, err := readConnection(ctx, tx, of)
		if err != nil {
			return err
		}
		if len(found.Sealed) == 0 {
			return ErrConnectionUnknown
		}
		_, err = tx.ExecContext(ctx, `UPDATE identity_connections SET generation = generation + 1, sealed = $4, has_refresh_token = 0, expires = 0,
			login_required = 1, problem = '', lease = '', lease_until = 0, deleted = $5, account_name = '' `+ofKey, of.Server, of.Tenant, of.Person, []byte{}, sqlstore.Micros(tx.Now))
		return err
	})
}

// BeginRefresh gives a replica the lease to refresh a connection of the given generation. begun is false if another
// replica has the lease, if the pause after a failed refresh has not ended, or if the connection has another
// generation. BeginRefresh returns the connection in all these cases. The error can be [ErrConnectionUnknown] or
// [sqlstore.ErrUnavailable].
func (s *Store) BeginRefresh(ctx context.Context, of Key, generation int64, replica string, lease time.Duration) (found Connection, begun bool, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		result, err := tx.ExecContext(ctx, `UPDATE identity_connections SET lease = $5, lease_until = $6
			`+ofKey+` AND generation = $4 AND login_required = 0 AND lease_until <= $7`,
			of.Server, of.Tenant, of.Person, generation, replica, sqlstore.Micros(tx.Now.Add(lease)), sqlstore.Micros(tx.Now))
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		begun = n > 0
		found, err = readConnection(ctx, tx, of)
		return err
	})
	return found, begun, err
}

// FinishRefresh stores the new tokens of a connection for which the replica has the lease. It increases the generation
// of the connection. The error can be [ErrConnectionChanged] or [sqlstore.ErrUnavailable].
func (s *Store) FinishRefresh(ctx context.Context, with Connection, replica string, seal Sealer) (stored Connection, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		stored = with
		stored.Generation, stored.Refreshed = with.Generation+1, tx.Now
		stored.LoginRequired, stored.Problem, stored.Lease = false, "", ""
		if stored.Sealed, err = seal(stored.Generation); err != nil {
			return err
		}
		return changeLeased(tx.ExecContext(ctx, `UPDATE identity_connections SET generation = $6, sealed = $7, scopes = $8, has_refresh_token = $9,
			refreshed = $10, expires = $11, problem = '', lease = '', lease_until = 0 `+ofKey+` AND generation = $4 AND lease = $5`,
			with.Server, with.Tenant, with.Person, with.Generation, replica, stored.Generation, stored.Sealed, stored.Scopes, number(stored.HasRefreshToken),
			sqlstore.Micros(stored.Refreshed), microsOrZero(stored.Expires)))
	})
	return stored, err
}

// FailRefresh records that a refresh has failed, and ends the replica's lease. The next refresh may begin after the
// given pause, or never if loginRequired is true. The error can be [ErrConnectionChanged] or [sqlstore.ErrUnavailable].
func (s *Store) FailRefresh(ctx context.Context, of Key, generation int64, replica, problem string, loginRequired bool, pause time.Duration) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		return changeLeased(tx.ExecContext(ctx, `UPDATE identity_connections SET problem = $6, login_required = $7, lease = '', lease_until = $8
			`+ofKey+` AND generation = $4 AND lease = $5`, of.Server, of.Tenant, of.Person, generation, replica, problem, number(loginRequired), sqlstore.Micros(tx.Now.Add(pause))))
	})
}

// RecordRefusal records whether the server refuses the access token of the given generation. If the connection has
// another generation, nothing changes. The error can be [sqlstore.ErrUnavailable].
func (s *Store) RecordRefusal(ctx context.Context, of Key, generation int64, isRefused bool) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE identity_connections SET refused_generation = $5 "+ofKey+" AND generation = $4", of.Server, of.Tenant, of.Person, generation, number(isRefused)*generation)
		return err
	})
}

// changeLeased returns [ErrConnectionChanged] if a statement has changed no row, because the replica does not have the
// lease.
func changeLeased(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, ErrConnectionChanged)
	}
	return nil
}

// ofKey selects the row with a [Key]. The fields of the key are the first three arguments.
const ofKey = "WHERE server = $1 AND tenant = $2 AND person = $3"

func readConnection(ctx context.Context, tx *sqlstore.Tx, of Key) (Connection, error) {
	found, err := readConnections(ctx, tx, ofKey, of.Server, of.Tenant, of.Person)
	switch {
	case err != nil:
		return Connection{}, err
	case len(found) == 0:
		return Connection{}, ErrConnectionUnknown
	}
	return found[0], nil
}

func readConnections(ctx context.Context, tx *sqlstore.Tx, where string, args ...any) (out []Connection, err error) {
	err = tx.Each(ctx, func(rows *sql.Rows) error {
		var c Connection
		var hasRefresh, connected, refreshed, expires, loginRequired int64
		if err := rows.Scan(&c.Server, &c.Tenant, &c.Person, &c.Generation, &c.Sealed, &c.Issuer, &c.Scopes, &hasRefresh, &connected, &c.ConnectedByTenant, &c.ConnectedBy,
			&refreshed, &expires, &loginRequired, &c.Problem, &c.Lease, &c.RefusedGeneration, &c.AccountName); err != nil {
			return fmt.Errorf("read a connection: %w", err)
		}
		c.HasRefreshToken, c.LoginRequired = hasRefresh != 0, loginRequired != 0
		c.Connected, c.Refreshed = sqlstore.Time(connected), sqlstore.Time(refreshed)
		if expires != 0 {
			c.Expires = sqlstore.Time(expires)
		}
		out = append(out, c)
		return nil
	}, `SELECT server, tenant, person, generation, sealed, issuer, scopes, has_refresh_token, connected, connected_by_tenant, connected_by, refreshed, expires,
		login_required, problem, lease, refused_generation, account_name FROM identity_connections `+where, args...)
	return out, err
}

func number(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func microsOrZero(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return sqlstore.Micros(at)
}
