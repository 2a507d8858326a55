//go:build !unix

package stdio

import (
	"log/slog"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/proclimit"
)

// disk does nothing, because the gateway starts no servers as child processes on this system.
type disk struct{}

func newDisk(*transport, string) *disk { return new(disk) }

func diskOf(*transport, string, string) *disk { return new(disk) }

func (*disk) check(time.Time, *proclimit.Group) error { return nil }

func (*disk) admit() error { return nil }

func (*disk) makeRoom(*slog.Logger) {}

// measure returns 0, because there are no private directories on this system.
func measure(string, int64) (int64, error) { return 0, nil }
