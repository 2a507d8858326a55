// Package failpoint builds programs with failpoints. A test chooses a failpoint. The program blocks there, so that the
// test can kill it.
//
// A failpoint is a comment in the code, `// gofail: var NAME struct{}`. It has no effect in released programs. The
// package copies the source tree, uses gofail to convert the comments in the copy to code, and builds the copy. Builds
// are cached in `sluice/failpoints` in the user's cache directory, and are removed a week after their last use. A
// build's key is a digest of its sources. The cache may be deleted at any time.
package failpoint
