package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"google.golang.org/protobuf/proto"

	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/objects"
)

// maxState limits the size of an encoded state, in bytes.
const maxState = 128 << 20

// recentAge is how old an unused state must be before it is removed. A newer state may belong to a change that is not
// committed yet.
const recentAge = 10 * time.Minute

// states stores the states of agents in a directory or in a bucket. The key of a state consists of the agent's id and
// the name of the state.
type states struct{ objects.Bucket }

// openStates opens the bucket with the given URL. If the URL is empty, it opens the given directory.
func openStates(url, dir string) (states, error) {
	if url != "" {
		bucket, err := objects.Open(url)
		if err != nil {
			return states{}, fmt.Errorf("open the bucket of states: %w", err)
		}
		return states{bucket}, nil
	}
	bucket, err := objects.OpenFolder(dir, true)
	if err != nil {
		return states{}, fmt.Errorf("open the folder of states: %w", err)
	}
	return states{bucket}, nil
}

// pack encodes a state for storage. It returns the encoded state and its SHA-256 in hexadecimal digits.
func pack(s *wasmstorev1.State) (text []byte, digest string, err error) {
	if text, err = (proto.MarshalOptions{Deterministic: true}).Marshal(s); err != nil {
		return nil, "", fmt.Errorf("write a state: %w", err)
	}
	sum := sha256.Sum256(text)
	return text, hex.EncodeToString(sum[:]), nil
}

// put stores a state and returns its name. Names are unique, so that removing an old state can't remove a new one.
func (s states) put(ctx context.Context, id, digest string, text []byte) (string, error) {
	name := digest + "-" + rand.Text()
	if err := s.Write(ctx, id+"/"+name, text); err != nil {
		return "", unavailableError(fmt.Errorf("store a state: %w", err))
	}
	return name, nil
}

// get returns a state. It returns [ErrUnavailable] if the state can't be read, and [ErrStateLost] if the state is
// missing or does not match its digest.
func (s states) get(ctx context.Context, id, name, digest string) (*wasmstorev1.State, error) {
	r, err := s.Read(ctx, id+"/"+name)
	if errors.Is(err, objects.ErrNotFound) {
		return nil, fmt.Errorf("%w: it is missing", ErrStateLost)
	}
	if err != nil {
		return nil, unavailableError(fmt.Errorf("read a state: %w", err))
	}
	defer r.Close() //nolint:errcheck // the state was only read
	text, err := io.ReadAll(io.LimitReader(r, maxState))
	if err != nil {
		return nil, unavailableError(fmt.Errorf("read a state: %w", err))
	}
	out := new(wasmstorev1.State)
	sum := sha256.Sum256(text)
	if hex.EncodeToString(sum[:]) != digest || proto.Unmarshal(text, out) != nil {
		return nil, fmt.Errorf("%w: it was changed", ErrStateLost)
	}
	return out, nil
}

// removeExcept removes the states of an agent, except the states with the given names. If names are given, it does not
// remove recent states either, because another process may be about to commit a record that refers to one of them.
func (s states) removeExcept(ctx context.Context, id string, excepted map[string]bool) error {
	for found, err := range s.List(ctx, id) {
		if err != nil {
			return unavailableError(fmt.Errorf("list states: %w", err))
		}
		if excepted[path.Base(found.Key)] || len(excepted) > 0 && time.Since(found.Modified) < recentAge {
			continue
		}
		if err := s.Delete(ctx, found.Key); err != nil {
			return unavailableError(fmt.Errorf("remove a state: %w", err))
		}
	}
	return nil
}

// remove removes a state of an agent. It ignores errors.
func (s states) remove(ctx context.Context, id, name string) {
	_ = s.Delete(ctx, id+"/"+name) // if this fails, the state is removed together with the agent
}

// unavailableError adds [ErrUnavailable] to an error from the bucket.
func unavailableError(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }
