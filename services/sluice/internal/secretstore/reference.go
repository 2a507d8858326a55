package secretstore

import (
	"path/filepath"

	"github.com/sluice-mesh/sluice/services/internal/keychain"
)

// Reference returns the reference that [Store.Put] returns for the same arguments, without storing anything.
func (s *Store) Reference(server, name, value string) string {
	if s.kind == Keychain && len(value) <= keychain.MaxBytes {
		return "${keychain:" + server + "/" + name + "}"
	}
	return "${file:" + filepath.Join(s.data, folder, server, name) + "}"
}
