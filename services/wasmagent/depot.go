package wasmagent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/archive"
)

const (
	// depotTime is how long an archive lies without anybody asking for it, or adding to it.
	depotTime = 10 * time.Minute
	// maxParcels is how many archives lie at a time, and maxOwnParcels how many of one person.
	maxParcels    = 16
	maxOwnParcels = 2
)

var (
	errArchive   = errors.New("there is no such archive: it was made more than 10 min ago, or not at all")
	errParcels   = fmt.Errorf("as many archives come and go as may: %d of one caller, %d in all; each lies for %s", maxOwnParcels, maxParcels, depotTime)
	errPart      = errors.New("the part is another than the one that is stored, or the archive is not what its digest says")
	errPlaceGone = errors.New("the part is not the next one")
)

// placeError says where an archive goes on.
type placeError struct{ next int64 }

func (e placeError) Error() string {
	return fmt.Sprintf("%v: go on at %d", errPlaceGone, e.next)
}

func (e placeError) Unwrap() error { return errPlaceGone }

// depot has archives lie in files for a while: those that are fetched in parts, and those that
// arrive in parts. It is safe for concurrent use.
type depot struct {
	dir string

	mu  sync.Mutex
	all map[parcelKey]*parcel
}

// parcelKey names a parcel: whose it is, and the archive's digest.
type parcelKey struct {
	owner  principal.Key
	digest string
	comes  bool
}

// parcel is an archive that lies.
type parcel struct {
	path string
	size int64
	// have is how much of it is there.
	have  int64
	until time.Time
	// made is the agent that was made of it, and from which; empty before.
	made, from string
}

// newDepot returns a depot in a folder of its own, in which nothing lies.
func newDepot(dir string) (*depot, error) {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return nil, fmt.Errorf("make the folder of archives: %w", err)
	}
	return &depot{dir: dir, all: make(map[parcelKey]*parcel)}, nil
}

// find finds a parcel, or has room for one. It needs the lock.
func (d *depot) find(key parcelKey, size int64) (*parcel, error) {
	now := time.Now()
	own := 0
	for k, p := range d.all {
		if now.After(p.until) {
			_ = os.Remove(p.path) // the folder is emptied at the next start
			delete(d.all, k)
		} else if k.owner == key.owner {
			own++
		}
	}
	if p := d.all[key]; p != nil {
		p.until = now.Add(depotTime)
		return p, nil
	}
	if size == 0 {
		return nil, errArchive
	}
	if own >= maxOwnParcels && !key.comes { // what was made before makes way
		own -= d.forgetOldest(key.owner)
	}
	if own >= maxOwnParcels || len(d.all) >= maxParcels {
		return nil, errParcels
	}
	sum := sha256.Sum256([]byte(fmt.Sprintf("%q %q %v", key.owner.Tenant, key.owner.Subject, key.comes)))
	p := &parcel{path: filepath.Join(d.dir, key.digest+"-"+hex.EncodeToString(sum[:8])), size: size, until: now.Add(depotTime)}
	d.all[key] = p
	return p, nil
}

// forgetOldest forgets the oldest archive that somebody fetches, and says how many that were.
// It needs the lock.
func (d *depot) forgetOldest(owner principal.Key) int {
	var oldest *parcelKey
	for k, p := range d.all {
		if k.owner == owner && !k.comes && (oldest == nil || p.until.Before(d.all[*oldest].until)) {
			oldest = &k
		}
	}
	if oldest == nil {
		return 0
	}
	_ = os.Remove(d.all[*oldest].path) // the folder is emptied at the next start
	delete(d.all, *oldest)
	return 1
}

// drop forgets an archive of which nothing can be made.
func (d *depot) drop(key parcelKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.all[key]; p != nil {
		_ = os.Remove(p.path) // the folder is emptied at the next start
		delete(d.all, key)
	}
}

// keep has an archive lie.
func (d *depot) keep(key parcelKey, text []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.find(key, int64(len(text)))
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.path, text, 0o600); err != nil {
		delete(d.all, key)
		return fmt.Errorf("keep an archive: %w", err)
	}
	p.size, p.have = int64(len(text)), int64(len(text))
	return nil
}

// part reads a part of an archive, and says how large that is.
func (d *depot) part(key parcelKey, offset int64, most int) (part []byte, size int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.find(key, 0)
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(p.path)
	if err != nil {
		return nil, 0, fmt.Errorf("read an archive: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	part = make([]byte, max(0, min(int64(most), p.size-offset)))
	if _, err := f.ReadAt(part, offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("read an archive: %w", err)
	}
	return part, p.size, nil
}

// add takes a part of an archive that arrives. It returns the archive once it is whole, or the
// agents that were made of it.
func (d *depot) add(key parcelKey, size, offset int64, part []byte) (p parcel, whole []byte, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if size > archive.MaxBytes || offset+int64(len(part)) > size {
		return p, nil, errPart
	}
	found, err := d.find(key, size)
	if err != nil {
		return p, nil, err
	}
	switch {
	case found.size != size:
		return p, nil, errPart
	case found.made != "":
		return *found, nil, nil
	case offset > found.have:
		return p, nil, placeError{found.have}
	}
	f, err := os.OpenFile(found.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return p, nil, fmt.Errorf("keep an archive: %w", err)
	}
	defer f.Close() //nolint:errcheck // what was not written is found by its digest
	if again := min(int64(len(part)), found.have-offset); again > 0 {
		stored := make([]byte, again)
		if _, err := f.ReadAt(stored, offset); err != nil || string(stored) != string(part[:again]) {
			return p, nil, errPart
		}
	}
	if _, err := f.WriteAt(part, offset); err != nil {
		return p, nil, fmt.Errorf("keep an archive: %w", err)
	}
	found.have = max(found.have, offset+int64(len(part)))
	if found.have < size {
		return *found, nil, nil
	}
	whole = make([]byte, size)
	if _, err := f.ReadAt(whole, 0); err != nil {
		return p, nil, fmt.Errorf("read an archive: %w", err)
	}
	if sum := sha256.Sum256(whole); hex.EncodeToString(sum[:]) != key.digest {
		_ = os.Remove(found.path)
		delete(d.all, key)
		return p, nil, errPart
	}
	return *found, whole, nil
}

// done says what was made of an archive.
func (d *depot) done(key parcelKey, made, from string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.all[key]; p != nil {
		p.made, p.from = made, from
	}
}
