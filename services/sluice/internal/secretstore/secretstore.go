// Package secretstore stores secrets of MCP servers, and returns references for the mesh's configuration. It stores the
// secrets in the keychain of the operating system, or in files if there is no keychain.
package secretstore

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/keychain"
)

// Kind is the kind of place in which a [Store] stores secrets.
type Kind string

// These are the kinds of stores.
const (
	Keychain Kind = "keychain"
	Files    Kind = "files"
)

const (
	// probeTimeout limits how long the check whether the keychain works may take.
	probeTimeout = 3 * time.Second
	// keyServer replaces the server's name in the names of keys. No server can have this name.
	keyServer = ".keys"
	// sessionServer replaces the server's name in the names of people's sessions. No server can have this name.
	sessionServer = ".sessions"
	probes        = ".probes"
	folder        = "secrets"
	// temporary is the pattern for the names of files that are being written. No secret can have a name that matches
	// it.
	temporary = ".new-*"
	keyBytes  = 32
)

// ErrNoKey means that a store has no key with the given name.
var ErrNoKey = errors.New("the key does not exist")

// Store stores secrets. Its methods may be called concurrently, even by several processes. The exception is
// [Store.Key], which only one process may call at a time.
type Store struct {
	data string
	kind Kind
}

// Open returns the store for a mesh's data directory, which must be an absolute path. It uses the keychain if a random
// value can be stored, read and deleted there within 3 s and before ctx is done. Otherwise it uses files in
// DATA/secrets and logs the reason.
func Open(ctx context.Context, data string, log *slog.Logger) (*Store, error) {
	s, err := OpenKind(data, Keychain)
	if err != nil {
		return nil, err
	}
	probing, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := probe(probing); err != nil {
		s.kind = Files
		log.InfoContext(ctx, "the keychain can't be used, so secrets are stored in files", "folder", filepath.Join(data, folder), "reason", err.Error())
	}
	return s, nil
}

// OpenKind returns the store of the given kind, such as the kind that an earlier process used. It does not check that
// the store works.
func OpenKind(data string, kind Kind) (*Store, error) {
	switch {
	case !filepath.IsAbs(data) || strings.ContainsAny(data, "${}\n"):
		return nil, fmt.Errorf("the data folder %q is not an absolute path, or it contains $, { or }: choose another", data)
	case kind != Keychain && kind != Files:
		return nil, fmt.Errorf("%q is not a kind of secret store", kind)
	}
	return &Store{data: filepath.Clean(data), kind: kind}, nil
}

// Kind returns the kind of the store. A store of the kind Keychain also uses files, for values that are too large for
// the keychain.
func (s *Store) Kind() Kind { return s.kind }

func probe(ctx context.Context) error {
	name, value := probes+"/"+rand.Text(), rand.Text()
	if err := keychain.Set(ctx, name, value); err != nil {
		return err
	}
	got, err := keychain.Get(ctx, name)
	deleting, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout/3)
	defer cancel()
	if deleteErr := keychain.Delete(deleting, name); err != nil || deleteErr != nil {
		return errors.Join(err, deleteErr)
	}
	if got != value {
		return errors.New("the keychain returned a different value than the one that was stored")
	}
	return nil
}

// Put stores the value of a server's environment variable or header, and returns a reference for the configuration. It
// replaces an earlier value with the same server and name.
func (s *Store) Put(ctx context.Context, server, name, value string) (reference string, err error) {
	if err := keychain.CheckName(server + "/" + name); err != nil {
		return "", err
	}
	if value == "" {
		return "", fmt.Errorf("the secret %s of %s is empty", name, server)
	}
	return s.put(ctx, server, name, value)
}

func (s *Store) put(ctx context.Context, server, name, value string) (reference string, err error) {
	reference = s.Reference(server, name, value)
	if s.fitsKeychain(value) {
		if err := keychain.Set(ctx, server+"/"+name, value); err != nil {
			return "", fmt.Errorf("store %s of %s in the keychain: %w", name, server, err)
		}
		return reference, nil
	}
	if strings.TrimRight(value, "\r\n") != value {
		return "", fmt.Errorf("the secret %s of %s ends with a newline, which a reference to a file does not keep", name, server)
	}
	path := filepath.Join(s.data, folder, server, name)
	if err := writeFile(path, value); err != nil {
		return "", fmt.Errorf("store %s of %s: %w", name, server, err)
	}
	return reference, nil
}

// Reference returns the reference that [Store.Put] would return for the same arguments. It stores nothing.
func (s *Store) Reference(server, name, value string) string {
	if s.fitsKeychain(value) {
		return "${keychain:" + server + "/" + name + "}"
	}
	return "${file:" + filepath.Join(s.data, folder, server, name) + "}"
}

func (s *Store) fitsKeychain(value string) bool {
	return s.kind == Keychain && len(value) <= keychain.MaxBytes
}

// Delete deletes the secret with a reference from [Store.Put]. The reference may come from a store of another kind with
// the same data directory. Delete refuses all other references. It succeeds if the secret does not exist.
func (s *Store) Delete(ctx context.Context, reference string) error {
	entry, inKeychain := strings.CutPrefix(strings.TrimSuffix(reference, "}"), "${keychain:")
	path, inFile := strings.CutPrefix(strings.TrimSuffix(reference, "}"), "${file:")
	if inFile {
		entry, inFile = strings.CutPrefix(path, filepath.Join(s.data, folder)+string(filepath.Separator))
	}
	if entry = filepath.ToSlash(entry); !inKeychain && !inFile || keychain.CheckName(entry) != nil {
		return fmt.Errorf("%s is not a reference to a secret of this store", reference)
	}
	if inKeychain {
		if err := keychain.Delete(ctx, entry); err != nil && !errors.Is(err, keychain.ErrNotFound) {
			return fmt.Errorf("delete %s from the keychain: %w", entry, err)
		}
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete the secret: %w", err)
	}
	_ = os.Remove(filepath.Dir(path)) // fails while the directory contains other secrets
	return nil
}

// Key returns a random key of 32 bytes for [Seal]. It creates the key if it does not exist. The name may consist of
// letters, digits and the characters _ . -
func (s *Store) Key(ctx context.Context, name string) ([]byte, error) {
	key, err := s.ExistingKey(ctx, name)
	if !errors.Is(err, ErrNoKey) {
		return key, err
	}
	key = make([]byte, keyBytes)
	_, _ = rand.Read(key) // never fails
	if _, err := s.put(ctx, keyServer, name, base64.StdEncoding.EncodeToString(key)); err != nil {
		return nil, err
	}
	return s.ExistingKey(ctx, name)
}

// ExistingKey returns a key that [Store.Key] created in a store of the same kind. If there is no such key, it returns
// [ErrNoKey].
func (s *Store) ExistingKey(ctx context.Context, name string) ([]byte, error) {
	if err := checkKey(name); err != nil {
		return nil, err
	}
	text, err := s.read(ctx, keyServer, name)
	switch {
	case errors.Is(err, keychain.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s in %s: %w", name, s.kind, ErrNoKey)
	case err != nil:
		return nil, fmt.Errorf("read the key %s: %w", name, err)
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != keyBytes {
		return nil, fmt.Errorf("the key %s in %s is damaged", name, s.kind)
	}
	return key, nil
}

func checkKey(name string) error {
	if keychain.CheckName("keys/"+name) != nil {
		return fmt.Errorf("%q is not the name of a key: use letters, digits, _ . and -", name)
	}
	return nil
}

// read returns the value that [Store.put] stored with the same server and name.
func (s *Store) read(ctx context.Context, server, name string) (string, error) {
	if s.kind == Keychain {
		return keychain.Get(ctx, server+"/"+name)
	}
	raw, err := os.ReadFile(filepath.Join(s.data, folder, server, name))
	return string(raw), err
}

// DeleteKey deletes a key. It succeeds if the key does not exist.
func (s *Store) DeleteKey(ctx context.Context, name string) error {
	if err := checkKey(name); err != nil {
		return err
	}
	return s.remove(ctx, keyServer, name)
}

// remove deletes the value that [Store.put] stored with the same server and name. It succeeds if the value does not
// exist.
func (s *Store) remove(ctx context.Context, server, name string) error {
	if s.kind == Keychain {
		if err := keychain.Delete(ctx, server+"/"+name); err != nil && !errors.Is(err, keychain.ErrNotFound) {
			return fmt.Errorf("delete %s/%s from the keychain: %w", server, name, err)
		}
		return nil
	}
	if err := os.Remove(filepath.Join(s.data, folder, server, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete %s/%s: %w", server, name, err)
	}
	return nil
}

// PutSession stores the token of a person's session. It replaces a token with the same name. The rules for names are
// the same as for [Store.Key].
func (s *Store) PutSession(ctx context.Context, name, token string) error {
	if err := checkKey(name); err != nil {
		return err
	}
	_, err := s.put(ctx, sessionServer, name, token)
	return err
}

// Session returns the token that [Store.PutSession] stored in a store of the same kind.
func (s *Store) Session(ctx context.Context, name string) (string, error) {
	if err := checkKey(name); err != nil {
		return "", err
	}
	token, err := s.read(ctx, sessionServer, name)
	if err != nil {
		return "", fmt.Errorf("read the session %s from %s: %w", name, s.kind, err)
	}
	return token, nil
}

// DeleteSession deletes the token of a session. It succeeds if the token does not exist.
func (s *Store) DeleteSession(ctx context.Context, name string) error {
	if err := checkKey(name); err != nil {
		return err
	}
	return s.remove(ctx, sessionServer, name)
}

// RemoveLeftovers removes temporary files with secrets that killed processes left behind. No other process may store
// secrets at the same time.
func (s *Store) RemoveLeftovers() error {
	root := os.DirFS(filepath.Join(s.data, folder))
	found, err := fs.Glob(root, "*/"+temporary)
	if err != nil {
		return fmt.Errorf("find the temporary files of secrets: %w", err)
	}
	for _, name := range found {
		path := filepath.Join(s.data, folder, filepath.FromSlash(name))
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a temporary file of a secret: %w", err)
		}
		_ = os.Remove(filepath.Dir(path)) // fails while the directory contains secrets
	}
	return nil
}

// writeFile writes a file that only its owner can access. After a crash, the file has either its old or its new
// content.
func writeFile(path, value string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, temporary) // the file has mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // fails after the file has been renamed
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	syncFolder(dir)
	return nil
}

// syncFolder makes a rename in a directory durable. It ignores errors, because Windows can't sync a directory.
func syncFolder(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}
