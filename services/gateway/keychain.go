package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/keychain"
)

const (
	// keychainTimeout limits how long it takes to read all keychain entries of a server. The limit gives a person enough
	// time to unlock the keychain.
	keychainTimeout = 30 * time.Second
	// keychainAgain is the retry delay that callers receive if the keychain could not be read.
	keychainAgain = 5 * time.Second
)

// lateServerFrom is like serverFrom, but ignores references to the keychain. If there are any, the values from the
// keychain are empty in the result, and Server.Complete is set.
func lateServerFrom(f *config.File, s config.Server, env config.Env) (Server, []error) {
	entries := make(map[string]bool)
	out, bad := serverFrom(f, s, resolver{env, func(entry string) (string, error) {
		entries[entry] = true
		return "", nil
	}})
	if len(entries) == 0 {
		return out, bad
	}
	out.KeychainEntries = slices.Sorted(maps.Keys(entries))
	out.Secrets = nil // some of the values are empty
	out.Complete = func(keychain config.Keychain) (Server, error) {
		server, bad := serverFrom(f, s, resolver{env, keychain})
		return server, errors.Join(bad...)
	}
	return out, bad
}

// readKeychain returns a function that reads entries of the keychain. The function reads each entry only once.
func (s *Service) readKeychain(ctx context.Context) config.Keychain {
	until, values := time.Now().Add(keychainTimeout), make(map[string]string)
	return func(entry string) (string, error) {
		if value, ok := values[entry]; ok {
			return value, nil
		}
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		value, err := keychain.Get(ctx, entry)
		if err == nil && value == "" {
			err = errors.New("its value is empty")
		}
		if err != nil {
			return "", fmt.Errorf("${keychain:%s}: %w; %s", entry, err, keychainAdvice(err))
		}
		values[entry] = value
		return value, nil
	}
}

func keychainAdvice(err error) string {
	switch {
	case errors.Is(err, keychain.ErrNotFound):
		return "store it with the service name sluice, or write ${file:PATH} instead"
	case errors.Is(err, keychain.ErrNoAnswer):
		return "unlock it, and call the server again"
	default:
		return "start the mesh in a session that has a keychain, or write ${file:PATH} instead"
	}
}

// keychainError returns the error for callers of a server whose secrets can't be read or used.
func keychainError(text string, err error) error {
	return &upstream.CauseError{Text: text, Detail: upstream.Escaped(err.Error(), 1000), RetryAfter: keychainAgain, Err: fmt.Errorf("%s: %w", text, err)}
}

func (s *Server) kind() string {
	switch {
	case s.URL != "":
		return "http"
	case s.Target != "":
		return "grpc"
	default:
		return "stdio"
	}
}
