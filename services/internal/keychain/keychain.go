// Package keychain stores secrets in the keychain of the operating system. This is the Secret Service on Linux,
// Keychain on macOS, and the Credential Manager on Windows.
package keychain

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/zalando/go-keyring"
)

const (
	// service is the name under which the keychain lists all entries of this program.
	service = "sluice"
	// MaxBytes is the maximum size of a value. It is below the limits of all systems, which are 2,560 bytes on Windows and
	// about 2,900 bytes on macOS. On macOS, the value is encoded in base64 and is part of a command of at most 4,096
	// bytes.
	MaxBytes = 2500
)

var (
	// ErrNotFound means that the keychain has no entry with the given name.
	ErrNotFound = errors.New("the keychain has no such entry")
	// ErrNoAnswer means that the keychain did not respond before the context was done. It might be waiting until a person
	// unlocks it.
	ErrNoAnswer = errors.New("the keychain did not respond in time, it may be locked")
)

// entryName matches a name of the form SERVER/NAME. Such a name is also a safe relative path.
var entryName = regexp.MustCompile(`^[a-z0-9-]{1,32}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// CheckName returns an error unless name is a valid entry name for a secret of a server. Such a name has the form
// SERVER/NAME, where NAME is usually the name of a variable or a header.
func CheckName(name string) error {
	if !entryName.MatchString(name) {
		return fmt.Errorf("%q is not the name of a keychain entry: write SERVER/NAME, such as github/GITHUB_TOKEN", name)
	}
	return nil
}

// Get returns the value of an entry. If the keychain is locked, the system might show a dialog, and Get waits until the
// dialog is answered or ctx is done.
func Get(ctx context.Context, name string) (string, error) {
	return use(ctx, func() (string, error) { return keyring.Get(service, name) })
}

// Set creates an entry or replaces its value.
func Set(ctx context.Context, name, value string) error {
	if len(value) > MaxBytes {
		return fmt.Errorf("the value has %d bytes, but the keychain accepts at most %d", len(value), MaxBytes)
	}
	_, err := use(ctx, func() (string, error) { return "", keyring.Set(service, name, value) })
	return err
}

// Delete deletes an entry. It returns [ErrNotFound] if there is none.
func Delete(ctx context.Context, name string) error {
	_, err := use(ctx, func() (string, error) { return "", keyring.Delete(service, name) })
	return err
}

// busy is a channel that is full while a request to the keychain is running. On macOS, a request can't be cancelled.
// Therefore the channel stays full while a request waits for a person, so that at most one goroutine waits.
var busy = make(chan struct{}, 1)

type response struct {
	value string
	err   error
}

// use calls f, which sends a request to the keychain, and returns its results. It returns [ErrNoAnswer] if f does not
// return before ctx is done.
func use(ctx context.Context, f func() (string, error)) (string, error) {
	select {
	case busy <- struct{}{}:
	case <-ctx.Done():
		return "", fmt.Errorf("%w: another request is waiting for it", ErrNoAnswer)
	}
	s, done := &session{}, make(chan response, 1)
	go func() {
		defer func() { <-busy }()
		defer s.close()
		value, err := call(s, f)
		done <- response{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		s.close()
		return "", ErrNoAnswer
	}
}

func call(s *session, f func() (string, error)) (value string, err error) {
	defer func() {
		// The library dereferences a nil signal if the connection is closed while a dialog is open.
		if broken := recover(); broken != nil {
			value, err = "", errors.New("the connection to the keychain was closed")
		}
	}()
	if err := s.open(); err != nil {
		return "", err
	}
	value, err = f()
	switch {
	case errors.Is(err, keyring.ErrNotFound):
		return "", ErrNotFound
	case err != nil:
		return "", fmt.Errorf("the keychain refused the request: %w", err)
	}
	return value, nil
}
