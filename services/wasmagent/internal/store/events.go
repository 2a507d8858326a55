package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

func appendEvents(ctx context.Context, tx *sqlstore.Tx, id string, first int64, all []*wasmstorev1.StoredEvent) error {
	for i, e := range all {
		text, err := packEvent(e)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO events (id, place, event) VALUES ($1, $2, $3)", id, first+int64(i), text); err != nil {
			return err
		}
	}
	return nil
}

// packEvent returns the stored form of an event, which consists of the SHA-256 of the encoded message and the message
// itself.
func packEvent(e *wasmstorev1.StoredEvent) ([]byte, error) {
	text, err := proto.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write an event: %w", err)
	}
	sum := sha256.Sum256(text)
	return append(sum[:], text...), nil
}

// unpackEvent decodes the stored form of an event. If the stored form is damaged, unpackEvent returns an empty event,
// which the check of the hash chain refuses.
func unpackEvent(text []byte) *wasmstorev1.StoredEvent {
	e := new(wasmstorev1.StoredEvent)
	if len(text) < sha256.Size || sha256.Sum256(text[sha256.Size:]) != [sha256.Size]byte(text) || proto.Unmarshal(text[sha256.Size:], e) != nil {
		return new(wasmstorev1.StoredEvent)
	}
	return e
}

// Events returns the events of an agent's journal after a position. It returns no more events than limit. Together they
// have no more bytes than bytes, except if the first event alone is larger. more reports whether there are further
// events.
func (s *Store) Events(ctx context.Context, id string, after int64, limit, bytes int) (all []*wasmstorev1.StoredEvent, more bool, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) (err error) {
		all, more = nil, false
		rows, err := tx.QueryContext(ctx, "SELECT event FROM events WHERE id = $1 AND place > $2 ORDER BY place LIMIT $3", id, after, limit+1)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for remaining := bytes; rows.Next(); {
			var text []byte
			if err := rows.Scan(&text); err != nil {
				return err
			}
			if remaining -= len(text); remaining < 0 && len(all) > 0 || len(all) == limit {
				more = true
				break
			}
			all = append(all, unpackEvent(text))
		}
		return rows.Err()
	})
	return all, more, err
}

// Last returns the newest stored event of an agent's journal, or nil if the journal is empty.
func (s *Store) Last(ctx context.Context, id string) (last *wasmstorev1.StoredEvent, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		var text []byte
		err := tx.QueryRowContext(ctx, "SELECT event FROM events WHERE id = $1 ORDER BY place DESC LIMIT 1", id).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			last = nil
			return nil
		}
		last = unpackEvent(text)
		return err
	})
	return last, err
}
