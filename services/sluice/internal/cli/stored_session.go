package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

const (
	// sessionFile is the name of the file in DATA/tokens that describes the stored session.
	sessionFile = "session.json"
	// sessionSource is the source of a session token in messages.
	sessionSource = "the session of `login`"
	// maxSessionFile is the maximum size of sessionFile in bytes.
	maxSessionFile = 64 << 10
)

// errNoSession means that no session is stored.
var errNoSession = errors.New("no session is stored")

// personSession is a session that `login` has stored in sessionFile. The file does not contain the token, which is in
// the keychain or in another file.
type personSession struct {
	// Store is the kind of store that contains the token. Mesh identifies the mesh, like endpoint.mesh.
	Store   secretstore.Kind `json:"store"`
	Mesh    string           `json:"mesh"`
	ID      string           `json:"id"`
	Subject string           `json:"subject"`
	Role    string           `json:"role"`
	Expires time.Time        `json:"expires"`
	// secret is the session token.
	secret string
}

func (s *personSession) isValid(now time.Time) bool { return now.Before(s.Expires) }

// secretNameOf returns the name under which the session of a data directory is stored. Each data directory needs a
// different name, because they share the keychain.
func secretNameOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:16])
}

// readSession returns the stored session with its token. It returns [errNoSession] if no session is stored.
func readSession(ctx context.Context, f *config.File) (*personSession, error) {
	s, err := describeSession(f)
	if err != nil {
		return nil, err
	}
	dir := absolutePath(f.Path(f.Data))
	secrets, err := secretstore.OpenKind(dir, s.Store)
	if err != nil {
		return nil, err
	}
	s.secret, err = secrets.Session(ctx, secretNameOf(dir))
	return s, err
}

// describeSession returns the stored session without its token. It returns [errNoSession] if no session is stored.
func describeSession(f *config.File) (*personSession, error) {
	path := tokenFile(f, sessionFile)
	raw, err := readLimited(path, maxSessionFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoSession
	}
	if err != nil {
		return nil, fmt.Errorf("read the session: %w", err)
	}
	s := new(personSession)
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("%s is damaged: sign in again", path)
	}
	return s, nil
}

// storeSession stores a session in place of the previously stored one.
func storeSession(ctx context.Context, f *config.File, mesh string, created *identityv1.CreateSessionResponse) error {
	dir := absolutePath(f.Path(f.Data))
	secrets, err := secretstore.Open(ctx, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if err := secrets.PutSession(ctx, secretNameOf(dir), created.GetSecret()); err != nil {
		return err
	}
	token := created.GetToken()
	raw, err := json.Marshal(personSession{
		Store: secrets.Kind(), Mesh: mesh, ID: token.GetName(), Subject: token.GetSubject(), Role: enum.Name(token.GetRole()), Expires: token.GetExpires().AsTime(),
	}, json.Deterministic(true))
	if err != nil {
		return err
	}
	path := tokenFile(f, sessionFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return replaceFile(path, raw)
}

// replaceFile writes a file that only its owner can read. Another process reads either the old or the new content.
func replaceFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*") // the file has mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}

// removeSession deletes the stored session from this machine. If the store of the token is not known, it deletes the
// token from all stores.
func removeSession(ctx context.Context, f *config.File) error {
	dir, kinds := absolutePath(f.Path(f.Data)), []secretstore.Kind{secretstore.Files, secretstore.Keychain}
	if s, err := describeSession(f); err == nil {
		kinds = []secretstore.Kind{s.Store}
	}
	var errs []error
	for _, kind := range kinds {
		secrets, err := secretstore.OpenKind(dir, kind)
		if err == nil {
			err = secrets.DeleteSession(ctx, secretNameOf(dir))
		}
		errs = append(errs, err)
	}
	if err := os.Remove(tokenFile(f, sessionFile)); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readUpTo reads all bytes. It returns an error if there are more than limit bytes.
func readUpTo(from io.Reader, limit int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err == nil && int64(len(raw)) > limit {
		return nil, fmt.Errorf("it has more than %d bytes", limit)
	}
	return raw, err
}
