// Package failpoint builds programs that stand still where a test tells them to, so
// that they can be killed there.
//
// The places are comments in the code, `// gofail: var NAME struct{}`, and nothing
// else in the programs that users run. Here the tree is copied, gofail turns the
// comments of the copy into code, and the copy is built. What is built is kept in
// `sluice/failpoints` in the user's cache folder, by its content, for a week after its
// last use; delete it whenever you like.
package failpoint
