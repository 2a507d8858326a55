package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/s3blob" // the scheme "s3"
	"gocloud.dev/gcerrors"
	"google.golang.org/protobuf/proto"

	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
)

// maxState bounds a state, in bytes: memory, files and conversation.
const maxState = 128 << 20

// lately is the age after which a state that no record names counts as left behind.
const lately = 10 * time.Minute

// states stores the states of agents, by agent and digest, in a folder or in a bucket of an object store.
type states struct {
	bucket *blob.Bucket
	// folder is the path of the folder; empty for a bucket.
	folder string
}

// openStates opens a bucket by its URL, or the folder if url is empty.
func openStates(ctx context.Context, url, folder string) (*states, error) {
	if url != "" {
		bucket, err := blob.OpenBucket(ctx, url)
		if err != nil {
			return nil, fmt.Errorf("open the bucket of states: %w", err)
		}
		return &states{bucket: bucket}, nil
	}
	bucket, err := fileblob.OpenBucket(folder, &fileblob.Options{CreateDir: true, DirFileMode: 0o700, NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		return nil, fmt.Errorf("open the folder of states: %w", err)
	}
	return &states{bucket, folder}, nil
}

// pack returns the stored form of a state, and its digest.
func pack(s *wasmstorev1.State) (text []byte, digest string, err error) {
	if text, err = (proto.MarshalOptions{Deterministic: true}).Marshal(s); err != nil {
		return nil, "", fmt.Errorf("write a state: %w", err)
	}
	sum := sha256.Sum256(text)
	return text, hex.EncodeToString(sum[:]), nil
}

// put stores a state and returns its name. In a folder the state is synced to disk when put returns. Each state has a
// name of its own, so that the removal of an old one can't hit a new one.
func (s *states) put(ctx context.Context, id, digest string, text []byte) (string, error) {
	name := digest + "-" + rand.Text()
	key := id + "/" + name
	_, err := os.Stat(filepath.Join(s.folder, id))
	isNew := s.folder != "" && err != nil
	if err := s.bucket.WriteAll(ctx, key, text, &blob.WriterOptions{ContentType: "application/octet-stream", DisableContentTypeDetection: true}); err != nil {
		return "", awayError(fmt.Errorf("store a state: %w", err))
	}
	if s.folder == "" {
		return name, nil
	}
	path := filepath.Join(s.folder, id, name)
	if err := errors.Join(sync(path), sync(filepath.Dir(path))); err != nil || !isNew {
		return name, err
	}
	return name, sync(s.folder)
}

// sync writes a file or folder to the disk.
func sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("store a state: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}

// get returns a state. Errors: [ErrState] if the state is missing or was changed.
func (s *states) get(ctx context.Context, id, name, digest string) (*wasmstorev1.State, error) {
	r, err := s.bucket.NewReader(ctx, id+"/"+name, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, fmt.Errorf("%w: it is not there", ErrState)
	}
	if err != nil {
		return nil, awayError(fmt.Errorf("read a state: %w", err))
	}
	defer r.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(r, maxState))
	if err != nil {
		return nil, awayError(fmt.Errorf("read a state: %w", err))
	}
	out := new(wasmstorev1.State)
	sum := sha256.Sum256(text)
	if hex.EncodeToString(sum[:]) != digest || proto.Unmarshal(text, out) != nil {
		return nil, fmt.Errorf("%w: it was changed", ErrState)
	}
	return out, nil
}

// drop removes the states of an agent except those in but. If but is not empty, recent states stay as well, because
// another process may be about to name them in a record.
func (s *states) drop(ctx context.Context, id string, but map[string]bool) error {
	list := s.bucket.List(&blob.ListOptions{Prefix: id + "/"})
	for {
		found, err := list.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return awayError(fmt.Errorf("list states: %w", err))
		}
		if but[filepath.Base(found.Key)] || len(but) > 0 && time.Since(found.ModTime) < lately {
			continue
		}
		if err := s.bucket.Delete(ctx, found.Key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
			return awayError(fmt.Errorf("remove a state: %w", err))
		}
	}
	if s.folder != "" && len(but) == 0 {
		_ = os.Remove(filepath.Join(s.folder, id)) // fails if the folder is not empty
	}
	return nil
}

// remove removes one state of an agent.
func (s *states) remove(ctx context.Context, id, name string) {
	_ = s.bucket.Delete(ctx, id+"/"+name) // a state that stays is removed with the agent
}

// awayError marks an error of the bucket with [ErrAway].
func awayError(err error) error { return fmt.Errorf("%w: %w", ErrAway, err) }
