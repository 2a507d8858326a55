package config

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"slices"
)

// AddToken adds a token that is not in the file. When the file is read again, the token is kept, unless the file now
// contains a token with the same role or the same name.
func (f *File) AddToken(t Token) {
	f.Auth.Tokens = append(f.Auth.Tokens, t)
	f.added = append(f.added, t)
}

// Reloader returns a function that reads the file again. The function must not be called concurrently. It parses the
// content only if the content has changed. If `secrets` has not changed, the results of commands and of Vault are used
// again. read returns the content of the file. If read is nil, the returned function
// reads the file itself. Reloader returns nil if f was not read from a file.
func (f *File) Reloader(read func() ([]byte, error), env Env) func() (*File, error) {
	if f.path == "" {
		return nil
	}
	if read == nil {
		read = func() ([]byte, error) { return os.ReadFile(f.path) }
	}
	var content []byte
	var parsed *File
	added := slices.Clone(f.added)
	return func() (*File, error) {
		raw, err := read()
		if err != nil {
			return nil, fmt.Errorf("read the configuration again: %w", err)
		}
		if parsed != nil && bytes.Equal(raw, content) {
			return parsed, nil
		}
		next, err := Parse(f.path, raw, env)
		if err != nil {
			return nil, err
		}
		if reflect.DeepEqual(next.Secrets, f.Secrets) { // no command runs again, and no person is asked again
			next.sources = f.sources
		}
		for _, t := range added {
			replaces := func(other Token) bool { return other.Role == t.Role || other.Name == t.Name }
			if !slices.ContainsFunc(next.Auth.Tokens, replaces) {
				next.AddToken(t)
			}
		}
		content, parsed = raw, next
		return next, nil
	}
}
