package store

import "testing"

func TestNewestDeleted_KeepsTheActiveRevisionAndItsPredecessor(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, tt := range []struct {
		name string
		all  []storedSize
		want int64
	}{
		{"nothing is stored", nil, 0},
		{"all fit", []storedSize{{3, "c", mib}, {2, "b", mib}, {1, "a", mib}}, 0},
		{"too many", []storedSize{{5, "e", 1}, {4, "d", 1}, {3, "c", 1}, {2, "b", 1}, {1, "a", 1}}, 2},
		{"too large", []storedSize{{4, "d", 2 * mib}, {3, "c", mib}, {2, "b", 2 * mib}, {1, "a", 1}}, 2},
		{"the newest two alone are too large", []storedSize{{3, "c", 8 * mib}, {2, "b", 8 * mib}, {1, "a", 1}}, 1},
		{"equal documents count once", []storedSize{{3, "a", 2 * mib}, {2, "b", mib}, {1, "a", 2 * mib}}, 0},
	} {
		if got := newestDeleted(tt.all, 3, 4*mib); got != tt.want {
			t.Errorf("%s: deleted up to number %d, want %d", tt.name, got, tt.want)
		}
	}
}
