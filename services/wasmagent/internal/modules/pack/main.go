// Command pack writes the shipped guests into one archive, which package modules embeds. The archive is a tar file that
// is compressed with Zstandard. It is 60 % smaller than separate gzip files, because all guests contain the same Go
// runtime.
//
//	pack DIRECTORY
//
// It replaces the files DIRECTORY/*.wasm with DIRECTORY/guests.tar.zst.
package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/klauspost/compress/zstd"
)

// window is the size of the compression window, in bytes. It is larger than all guests together, so that the compressor
// can refer to the copy of the Go runtime in the first guest when it compresses the other guests.
const window = 32 << 20

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pack DIRECTORY")
		os.Exit(2)
	}
	if err := pack(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(directory string) (err error) {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	modules, err := fs.Glob(root.FS(), "*.wasm") // sorted, so that the archive is reproducible
	if err != nil {
		return err
	}
	if len(modules) == 0 {
		return fmt.Errorf("%s contains no modules", directory)
	}
	if err := write(root, modules); err != nil {
		return err
	}
	var errs []error
	for _, module := range modules {
		errs = append(errs, root.Remove(module))
	}
	return errors.Join(errs...)
}

func write(root *os.Root, modules []string) (err error) {
	file, err := root.Create("guests.tar.zst")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	compressed, err := zstd.NewWriter(file, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, module := range modules {
		text, err := root.ReadFile(module)
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Name: module, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		if _, err := archive.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}
