//go:build !linux

package journal

import (
	"math"
	"os"
)

type systemFile struct{ *os.File }

// reserve implements [reserver]. Only Linux can reserve space.
func (systemFile) reserve(int64) error { return errUnreserved }

// freeSpace returns math.MaxInt64, because the free space is unknown.
func freeSpace(string) int64 { return math.MaxInt64 }
