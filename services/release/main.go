// Command release completes a release, after goreleaser has built the programs.
//
//	release packages DIST          writes DIST/release, which holds every file of the release
//	release modules VERSION COMMIT DIRECTORY
//
// The second form writes the Go modules of a commit into a directory that the go command accepts as a module proxy
// (GOPROXY=file://DIRECTORY). The commit is the one that the tags of the version name.
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "packages":
		return writePackages(args[1])
	case len(args) == 4 && args[0] == "modules":
		return writeModules(args[1], args[2], args[3])
	default:
		return errors.New("usage: release packages DIST | release modules VERSION COMMIT DIRECTORY")
	}
}
