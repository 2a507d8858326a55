package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/uuid"
)

// holder returns the name with which this gateway claims approvals. The name is stored next to the journal, because the
// gateway must use the same name when it replays the journal after a restart.
func (s *Service) holder() (string, error) {
	path := s.dir.Path("holder")
	raw, err := os.ReadFile(path)
	if name := strings.TrimSpace(string(raw)); err == nil && name != "" {
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read this gateway's name: %w", err)
	}
	name := "gateway-" + uuid.NewString()
	if err := os.WriteFile(path, []byte(name+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("store this gateway's name: %w", err)
	}
	return name, nil
}
