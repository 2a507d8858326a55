package stdio

import (
	"time"

	"golang.org/x/sys/unix"
)

// birthTime returns the birth time of a file and the id of its mount. known is false if the kernel or the file system
// does not report both.
func birthTime(dir int, name string) (at time.Time, mount uint64, known bool) {
	var st unix.Statx_t
	const flags, want = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT, unix.STATX_BTIME | unix.STATX_MNT_ID
	if unix.Statx(dir, name, flags, want, &st) != nil || st.Mask&want != want {
		return time.Time{}, 0, false
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)), st.Mnt_id, true
}
