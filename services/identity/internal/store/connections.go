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
	// ErrConnectionChanged means that a connection was replaced, deleted or refreshed by another program.
	ErrConnectionChanged = errors.New("the connection has changed")
)

// Connection is a sign-in of the mesh at an MCP server.
type Connection struct {
	Server string
	// Generation is at least 1. It increases with each new access token.
	Generation int64
	// Sealed contains the tokens and the OAuth client, encrypted for the server and the generation.
	Sealed []byte
	// Issuer identifies the authorization server. Scopes are separated by spaces.
	Issuer, Scopes  string
	HasRefreshToken bool
	Connected       time.Time
	// ConnectedByTenant and ConnectedBy are the tenant and the subject of the operator.
	ConnectedByTenant, ConnectedBy string
	// Refreshed is when the access token was issued, and Expires when it expires. Expires is zero if it is not known.
	Refreshed, Expires time.Time
	// LoginRequired is true if the tokens can't be used any more. Problem is the error of the last refresh, or "" if it
	// has succeeded.
	LoginRequired bool
	Problem       string
}

// Sealer encrypts the contents of a connection for a generation.
type Sealer func(generation int64) ([]byte, error)

// Connect stores a connection, which replaces the server's old connection. It sets the generation, the sealed contents
// and the times. The error can be [sqlstore.ErrUnavailable].
func (s *Store) Connect(ctx context.Context, want Connection, seal Sealer) (stored Connection, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		old, err := readConnections(ctx, tx, "WHERE server = $1", want.Server)
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
		if _, err := tx.ExecContext(ctx, "DELETE FROM identity_connections WHERE server = $1", want.Server); err != nil {
			return err
		}
		return insertConnection(ctx, tx, &stored)
	})
	return stored, err
}

func insertConnection(ctx context.Context, tx *sqlstore.Tx, c *Connection) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO identity_connections (server, generation, sealed, issuer, scopes, has_refresh_token, connected,
		connected_by_tenant, connected_by, refreshed, expires, login_required, problem, lease, lease_until)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0, '', '', 0)`,
		c.Server, c.Generation, c.Sealed, c.Issuer, c.Scopes, number(c.HasRefreshToken), sqlstore.Micros(c.Connected),
		c.ConnectedByTenant, c.ConnectedBy, sqlstore.Micros(c.Refreshed), microsOrZero(c.Expires))
	return err
}

// Connection returns the connection to a server. The error can be [ErrConnectionUnknown] or [sqlstore.ErrUnavailable].
func (s *Store) Connection(ctx context.Context, server string) (found Connection, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		found, err = readConnection(ctx, tx, server)
		return err
	})
	return found, err
}

// Connections returns all connections, sorted by server.
func (s *Store) Connections(ctx context.Context) (all []Connection, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		all, err = readConnections(ctx, tx, "ORDER BY server")
		return err
	})
	return all, err
}

// Disconnect deletes the tokens of a connection. The row stays, so that no later connection has the same generation.
// The error can be [ErrConnectionUnknown] or [sqlstore.ErrUnavailable].
func (s *Store) Disconnect(ctx context.Context, server string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		found, err := readConnection(ctx, tx, server)
		if err != nil {
			return err
		}
		if len(found.Sealed) == 0 {
			return ErrConnectionUnknown
		}
		_, err = tx.ExecContext(ctx, `UPDATE identity_connections SET generation = generation + 1, sealed = $2, has_refresh_token = 0, expires = 0,
			login_required = 1, problem = '', lease = '', lease_until = 0 WHERE server = $1`, server, []byte{})
		return err
	})
}

// BeginRefresh gives a replica the lease to refresh a connection of the given generation. begun is false if another
// replica has the lease, if a refresh has failed a short time ago, or if the connection has another generation. In each
// case, BeginRefresh returns the connection. The error can be [ErrConnectionUnknown] or [sqlstore.ErrUnavailable].
func (s *Store) BeginRefresh(ctx context.Context, server string, generation int64, replica string, lease time.Duration) (found Connection, begun bool, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		result, err := tx.ExecContext(ctx, `UPDATE identity_connections SET lease = $3, lease_until = $4
			WHERE server = $1 AND generation = $2 AND login_required = 0 AND lease_until <= $5`,
			server, generation, replica, sqlstore.Micros(tx.Now.Add(lease)), sqlstore.Micros(tx.Now))
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		begun = n > 0
		found, err = readConnection(ctx, tx, server)
		return err
	})
	return found, begun, err
}

// FinishRefresh stores the new tokens of a connection whose lease the replica has. The generation of the connection
// increases. The error can be [ErrConnectionChanged] or [sqlstore.ErrUnavailable].
func (s *Store) FinishRefresh(ctx context.Context, with Connection, replica string, seal Sealer) (stored Connection, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		stored = with
		stored.Generation, stored.Refreshed = with.Generation+1, tx.Now
		stored.LoginRequired, stored.Problem = false, ""
		if stored.Sealed, err = seal(stored.Generation); err != nil {
			return err
		}
		return changeLeased(tx.ExecContext(ctx, `UPDATE identity_connections SET generation = $4, sealed = $5, scopes = $6, has_refresh_token = $7,
			refreshed = $8, expires = $9, problem = '', lease = '', lease_until = 0 WHERE server = $1 AND generation = $2 AND lease = $3`,
			with.Server, with.Generation, replica, stored.Generation, stored.Sealed, stored.Scopes, number(stored.HasRefreshToken),
			sqlstore.Micros(stored.Refreshed), microsOrZero(stored.Expires)))
	})
	return stored, err
}

// FailRefresh records that a refresh has failed, and ends the lease of the replica. The next refresh may begin after
// the given pause, or never if loginRequired is true. The error can be [ErrConnectionChanged] or
// [sqlstore.ErrUnavailable].
func (s *Store) FailRefresh(ctx context.Context, server string, generation int64, replica, problem string, loginRequired bool, pause time.Duration) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		return changeLeased(tx.ExecContext(ctx, `UPDATE identity_connections SET problem = $4, login_required = $5, lease = '', lease_until = $6
			WHERE server = $1 AND generation = $2 AND lease = $3`, server, generation, replica, problem, number(loginRequired), sqlstore.Micros(tx.Now.Add(pause))))
	})
}

// changeLeased returns [ErrConnectionChanged] if a statement has changed no row.
func changeLeased(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, ErrConnectionChanged)
	}
	return nil
}

func readConnection(ctx context.Context, tx *sqlstore.Tx, server string) (Connection, error) {
	found, err := readConnections(ctx, tx, "WHERE server = $1", server)
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
		if err := rows.Scan(&c.Server, &c.Generation, &c.Sealed, &c.Issuer, &c.Scopes, &hasRefresh, &connected, &c.ConnectedByTenant, &c.ConnectedBy,
			&refreshed, &expires, &loginRequired, &c.Problem); err != nil {
			return fmt.Errorf("read a connection: %w", err)
		}
		c.HasRefreshToken, c.LoginRequired = hasRefresh != 0, loginRequired != 0
		c.Connected, c.Refreshed = sqlstore.Time(connected), sqlstore.Time(refreshed)
		if expires != 0 {
			c.Expires = sqlstore.Time(expires)
		}
		out = append(out, c)
		return nil
	}, `SELECT server, generation, sealed, issuer, scopes, has_refresh_token, connected, connected_by_tenant, connected_by, refreshed, expires,
		login_required, problem FROM identity_connections `+where, args...)
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
