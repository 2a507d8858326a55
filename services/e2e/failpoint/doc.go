// Package failpoint builds programs that block at a point that a test chooses, so that the test can kill them there.
//
// The points are comments in the code, `// gofail: var NAME struct{}`, which do nothing in the programs that users run.
// The package copies the source tree, lets gofail turn the comments of the copy into code, and builds the copy. Builds
// are cached by their content in `sluice/failpoints` in the user's cache folder, for a week after their last use. The
// folder can be deleted at any time.
package failpoint
