package store

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// archiveLifetime is how long an archive is stored after the last request for it.
	archiveLifetime = 10 * time.Minute
	// maxArchives limits how many archives are stored in total, and maxOwnArchives limits how many are stored for one
	// person.
	maxArchives    = 16
	maxOwnArchives = 2
	// archivePartSize limits the size of a stored part, in bytes.
	archivePartSize = 1 << 20
)

// The methods for archives return these errors. Compare them with [errors.Is].
var (
	// ErrArchiveUnknown means that the archive is not stored or not stored completely.
	ErrArchiveUnknown = errors.New("there is no such archive: it was created more than 10 min ago, or not at all")
	// ErrArchivesFull means that no more archives may be stored.
	ErrArchivesFull = fmt.Errorf("too many archives in transfer: at most %d of one caller and %d in all, each for %s after its last part", maxOwnArchives, maxArchives, archiveLifetime)
	// ErrPartInvalid means that a part differs from the bytes that are already stored, or that the digest of the
	// complete archive is wrong.
	ErrPartInvalid = errors.New("the part differs from the stored one, or the archive from its digest")
	// ErrPartOrder means that the part begins after the end of the stored bytes. See [PartOrderError].
	ErrPartOrder = errors.New("the part is not the next one")
)

// PartOrderError is [ErrPartOrder] together with the offset at which the next part must begin.
type PartOrderError struct{ Next int64 }

func (e PartOrderError) Error() string {
	return fmt.Sprintf("%v: continue at %d", ErrPartOrder, e.Next)
}

// Unwrap returns [ErrPartOrder].
func (e PartOrderError) Unwrap() error { return ErrPartOrder }

// ArchiveKey identifies an archive by its owner and its SHA-256 in hexadecimal digits. IsImport is true for an archive
// that is being imported, and false for one that was exported.
type ArchiveKey struct {
	Owner    principal.Key
	Digest   string
	IsImport bool
}

// Archive is the state of a stored archive.
type Archive struct {
	// Size is the size of the whole archive. Stored is how many bytes are stored, counted from the beginning of the
	// archive. Both are in bytes.
	Size, Stored int64
	// AgentID is the id of the agent that was created from the archive. ExportedID is the id that the agent had when it
	// was exported. Both ids are empty before the import.
	AgentID, ExportedID string

	id string
}

// PutArchive stores an exported archive. If the owner already has the maximum number of archives, PutArchive first
// removes the exported archive for which the owner's last request is oldest. It returns [ErrArchivesFull] if it can't
// remove one.
func (s *Store) PutArchive(ctx context.Context, key ArchiveKey, text []byte) error {
	var into *Archive
	err := s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) (err error) {
		into, err = findArchive(ctx, tx, key, int64(len(text)))
		return err
	})
	for err == nil && into.Stored < into.Size { // short transactions, so that other callers need not wait
		part := text[into.Stored:min(into.Stored+archivePartSize, into.Size)]
		err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error { return addPart(ctx, tx, into, part) })
		into.Stored += int64(len(part))
	}
	return err
}

// ArchivePart returns the part of an archive that begins at an offset, and the size of the whole archive. It returns
// [ErrArchiveUnknown] if the archive is not stored completely.
func (s *Store) ArchivePart(ctx context.Context, key ArchiveKey, offset int64) (part []byte, size int64, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		part = nil
		found, err := findArchive(ctx, tx, key, 0)
		if err != nil {
			return err
		}
		if size = found.Size; found.Stored < size {
			return ErrArchiveUnknown
		}
		var first int64
		err = tx.QueryRowContext(ctx, "SELECT first, data FROM archive_parts WHERE id = $1 AND first <= $2 ORDER BY first DESC LIMIT 1", found.id, offset).Scan(&first, &part)
		if err != nil {
			return err
		}
		part = part[min(offset-first, int64(len(part))):]
		return nil
	})
	return part, size, err
}

// AddArchivePart stores a part of an archive that is being imported. size is the size of the whole archive, in bytes.
// When the archive is complete, AddArchivePart returns the whole archive in content, unless an agent was already
// created from it. It returns [ErrArchivesFull], [ErrPartInvalid] or [ErrPartOrder].
func (s *Store) AddArchivePart(ctx context.Context, key ArchiveKey, size, offset int64, part []byte) (archive Archive, content []byte, err error) {
	if offset+int64(len(part)) > size {
		return archive, nil, ErrPartInvalid
	}
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		found, err := findArchive(ctx, tx, key, size)
		if err != nil {
			return err
		}
		archive, content = *found, nil
		switch {
		case found.Size != size:
			return ErrPartInvalid
		case found.AgentID != "":
			return nil
		case offset > found.Stored:
			return PartOrderError{found.Stored}
		}
		rest := part // part itself must not change, because the transaction may be repeated
		if overlap := min(int64(len(part)), found.Stored-offset); overlap > 0 {
			if is, err := hasBytes(ctx, tx, found.id, offset, part[:overlap]); err != nil || !is {
				return errors.Join(err, ErrPartInvalid)
			}
			rest = part[overlap:]
		}
		if err := addPart(ctx, tx, found, rest); err != nil {
			return err
		}
		archive.Stored += int64(len(rest))
		if archive.Stored == size {
			content, err = allParts(ctx, tx, archive.id)
		}
		return err
	})
	if err == nil && content != nil {
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != key.Digest {
			return archive, nil, errors.Join(ErrPartInvalid, s.DropArchive(ctx, key))
		}
	}
	return archive, content, err
}

// SetArchiveMade records that an agent was created from an archive. agentID is the id of the new agent, and exportedID
// is the id that the agent had when it was exported.
func (s *Store) SetArchiveMade(ctx context.Context, key ArchiveKey, agentID, exportedID string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		found, err := lookUpArchive(ctx, tx, key)
		if err != nil || found == nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE archives SET made = $2, origin = $3 WHERE id = $1", found.id, agentID, exportedID)
		return err
	})
}

// DropArchive removes an archive.
func (s *Store) DropArchive(ctx context.Context, key ArchiveKey) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM archives WHERE tenant = $1 AND person = $2 AND digest = $3 AND comes = $4", key.args()...)
		return err
	})
}

func (k ArchiveKey) args() []any {
	comes := int64(0)
	if k.IsImport {
		comes = 1
	}
	return []any{k.Owner.Tenant, k.Owner.Subject, k.Digest, comes}
}

// findArchive returns an archive and extends its lifetime. If the archive does not exist, findArchive creates an
// archive of the given size. If the size is 0, it returns [ErrArchiveUnknown] instead.
func findArchive(ctx context.Context, tx *sqlstore.Tx, key ArchiveKey, size int64) (*Archive, error) {
	if _, err := tx.ExecContext(ctx, "DELETE FROM archives WHERE until <= $1", sqlstore.Micros(tx.Now)); err != nil {
		return nil, err
	}
	until := sqlstore.Micros(tx.Now.Add(archiveLifetime))
	found, err := lookUpArchive(ctx, tx, key)
	if err != nil {
		return nil, err
	}
	if found != nil {
		_, err := tx.ExecContext(ctx, "UPDATE archives SET until = $2 WHERE id = $1", found.id, until)
		return found, err
	}
	if size == 0 {
		return nil, ErrArchiveUnknown
	}
	if err := makeArchiveSpace(ctx, tx, key); err != nil {
		return nil, err
	}
	out := &Archive{Size: size, id: rand.Text()}
	_, err = tx.ExecContext(ctx, `INSERT INTO archives (tenant, person, digest, comes, id, size, have, until, made, origin)
		VALUES ($1, $2, $3, $4, $5, $6, 0, $7, '', '')`, append(key.args(), out.id, size, until)...)
	return out, err
}

// lookUpArchive returns an archive, or nil if it does not exist.
func lookUpArchive(ctx context.Context, tx *sqlstore.Tx, key ArchiveKey) (*Archive, error) {
	out := new(Archive)
	err := tx.QueryRowContext(ctx, "SELECT id, size, have, made, origin FROM archives WHERE tenant = $1 AND person = $2 AND digest = $3 AND comes = $4", key.args()...).
		Scan(&out.id, &out.Size, &out.Stored, &out.AgentID, &out.ExportedID)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // nil if there is none
	}
	return out, err
}

// makeArchiveSpace makes sure that the owner can store one more archive. It returns [ErrArchivesFull] if that is not
// possible.
func makeArchiveSpace(ctx context.Context, tx *sqlstore.Tx, key ArchiveKey) error {
	var all, own int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM archives").Scan(&all); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM archives WHERE tenant = $1 AND person = $2", key.Owner.Tenant, key.Owner.Subject).Scan(&own); err != nil {
		return err
	}
	if own >= maxOwnArchives && !key.IsImport { // remove the oldest exported archive
		result, err := tx.ExecContext(ctx, `DELETE FROM archives WHERE id = (SELECT id FROM archives
			WHERE tenant = $1 AND person = $2 AND comes = 0 ORDER BY until, id LIMIT 1)`, key.Owner.Tenant, key.Owner.Subject)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		own, all = own-int(n), all-int(n)
	}
	if own >= maxOwnArchives || all >= maxArchives {
		return ErrArchivesFull
	}
	return nil
}

// addPart appends a part to the stored archive, unless another process has already stored the part. It does not modify
// *into.
func addPart(ctx context.Context, tx *sqlstore.Tx, into *Archive, part []byte) error {
	if len(part) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO archive_parts (id, first, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", into.id, into.Stored, part); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "UPDATE archives SET have = $2 WHERE id = $1 AND have < $2", into.id, into.Stored+int64(len(part)))
	return err
}

// eachPart calls do for each part of an archive that contains bytes after an offset, in the order of the parts.
func eachPart(ctx context.Context, tx *sqlstore.Tx, id string, after int64, do func(first int64, data []byte)) error {
	return tx.Each(ctx, func(rows *sql.Rows) error {
		var first int64
		var data []byte
		err := rows.Scan(&first, &data)
		do(first, data)
		return err
	}, "SELECT first, data FROM archive_parts WHERE id = $1 AND first + length(data) > $2 ORDER BY first", id, after)
}

func allParts(ctx context.Context, tx *sqlstore.Tx, id string) (content []byte, err error) {
	err = eachPart(ctx, tx, id, 0, func(_ int64, data []byte) { content = append(content, data...) })
	return content, err
}

// hasBytes reports whether the bytes of an archive at an offset are equal to want.
func hasBytes(ctx context.Context, tx *sqlstore.Tx, id string, offset int64, want []byte) (is bool, err error) {
	is = true
	err = eachPart(ctx, tx, id, offset, func(first int64, data []byte) {
		from, to := max(first, offset), min(first+int64(len(data)), offset+int64(len(want)))
		if from < to {
			is = is && string(data[from-first:to-first]) == string(want[from-offset:to-offset])
		}
	})
	return is, err
}

// ArchiveKeys returns the private key that signs this installation's archives, and the public keys that verify all
// archives that the installation has signed so far. own is the key of this process. The first process of an
// installation stores its own key as the signing key. If own may have signed archives before, known must be true, so
// that ArchiveKeys stores the public key of own as well.
func (s *Store) ArchiveKeys(ctx context.Context, own ed25519.PrivateKey, known bool) (signs ed25519.PrivateKey, all []ed25519.PublicKey, err error) {
	public, _ := own.Public().(ed25519.PublicKey)
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		signs, all = nil, nil
		has := false
		err := tx.Each(ctx, func(rows *sql.Rows) error {
			var key, seed []byte
			if err := rows.Scan(&key, &seed); err != nil {
				return err
			}
			if len(all) == 0 && len(seed) == ed25519.SeedSize {
				signs = ed25519.NewKeyFromSeed(seed)
			}
			all, has = append(all, key), has || public.Equal(ed25519.PublicKey(key))
			return nil
		}, "SELECT public, seed FROM archive_keys ORDER BY place")
		if err != nil || has || len(all) > 0 && !known {
			return err
		}
		seed := []byte{}
		if len(all) == 0 {
			signs, seed = own, own.Seed()
		}
		all = append(all, public)
		_, err = tx.ExecContext(ctx, "INSERT INTO archive_keys (place, public, seed) VALUES ($1, $2, $3)", int64(len(all)), []byte(public), seed)
		return err
	})
	if err == nil && signs == nil {
		err = errors.New("the key that signs archives is damaged in the store: table archive_keys")
	}
	return signs, all, err
}
