package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// These are the defaults of the fields of [StdioLimits].
const (
	defaultTasks  = 512
	defaultMemory = 2 * gib
	defaultDisk   = 2 * gib
)

const (
	mib Size = 1 << 20
	gib Size = 1 << 30
)

// Size is a number of bytes. It is written with a unit, MiB or GiB.
type Size int64

// UnmarshalText parses a size such as "512MiB" or "2GiB".
func (s *Size) UnmarshalText(text []byte) error {
	for unit, factor := range map[string]Size{"MiB": mib, "GiB": gib} {
		number, ok := strings.CutSuffix(string(text), unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 24)
		if err != nil {
			break
		}
		*s = Size(n) * factor
		return nil
	}
	return errors.New("is not a size such as 512MiB or 2GiB")
}

// String returns the size in the form that UnmarshalText parses.
func (s Size) String() string {
	if s%gib == 0 {
		return fmt.Sprintf("%dGiB", int64(s/gib))
	}
	return fmt.Sprintf("%dMiB", int64(s/mib))
}

// MarshalText returns the size in the form that UnmarshalText parses.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (l StdioLimits) check(p *problems, path string) {
	const leastTasks, mostTasks = 32, 100_000
	if l.Tasks < leastTasks || l.Tasks > mostTasks {
		p.addf(path+".tasks", "%d is not between %d and %d", l.Tasks, leastTasks, mostTasks)
	}
	for key, size := range map[string]Size{".memory": l.Memory, ".disk": l.Disk} {
		if size < 16*mib || size > 1024*1024*gib {
			p.addf(path+key, "%s is not between 16MiB and 1048576GiB", size)
		}
	}
}
