package atomicfile_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// acl returns an access control list that permits reading and writing for the user 1234, but not for the group.
func acl() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, permissions uint16
		id               uint32
	}{{1, 6, 1<<32 - 1}, {2, 6, 1234}, {4, 0, 1<<32 - 1}, {0x10, 6, 1<<32 - 1}, {0x20, 0, 1<<32 - 1}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.permissions)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

func setACL(t *testing.T, path, kind string) {
	t.Helper()
	if err := unix.Setxattr(path, kind, acl(), 0); errors.Is(err, unix.ENOTSUP) {
		t.Skip("the file system has no access control lists")
	} else if err != nil {
		t.Fatal(err)
	}
}

// The group bits in the mode of a file with an access control list are not the permissions of the group.
func TestReplace_RefusesAnAccessControlList(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	setACL(t, path, "system.posix_acl_access")
	err := w.Replace(t.Context(), path, []byte("old"), []byte("new"))
	if err == nil || !strings.Contains(err.Error(), "has an access control list") {
		t.Errorf("error %v", err)
	}
	checkOnly(t, path, "old")
}

// A new file inherits an access control list from its directory. The list is removed, because the file that is replaced
// has no list.
func TestReplace_InheritsNoAccessControlList(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	setACL(t, filepath.Dir(path), "system.posix_acl_default")
	if err := w.Replace(t.Context(), path, []byte("old"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	checkOnly(t, path, "new")
	if n, err := unix.Getxattr(path, "system.posix_acl_access", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the file has a list of %d bytes, %v", n, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
