package main

import (
	"archive/tar"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// The file ends with the payload (a tar), its SHA-256 and its length in eight bytes.
const trailer = 32 + 8

// Unpacks the programs into data/HASH/bin, once, and points data/current to it.
func unpack(dataDir string) (string, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer self.Close()
	end, err := self.Seek(-trailer, io.SeekEnd)
	if err != nil {
		return "", err
	}
	tail := make([]byte, trailer)
	if _, err := io.ReadFull(self, tail); err != nil {
		return "", err
	}
	length := int64(binary.BigEndian.Uint64(tail[32:]))
	if length <= 0 || length > end {
		return "", errors.New("this program has no payload")
	}
	data := filepath.Join(dataDir, "data")
	home := filepath.Join(data, hex.EncodeToString(tail[:32]))
	bin := filepath.Join(home, "bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	if err := os.MkdirAll(data, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(data, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	// What a power cut left there, as k3s does.
	work := home + "-tmp"
	if err := os.RemoveAll(work); err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(filepath.Join(work, "bin"), 0o755); err != nil {
		return "", err
	}
	archive := tar.NewReader(io.NewSectionReader(self, end-length, length))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		path := filepath.Join(work, "bin", filepath.Base(header.Name))
		switch header.Typeflag {
		case tar.TypeReg:
			if err := write(path, archive); err != nil {
				return "", err
			}
		case tar.TypeSymlink:
			if err := os.Symlink(filepath.Base(header.Linkname), path); err != nil {
				return "", err
			}
		}
	}
	if err := os.Rename(work, home); err != nil {
		return "", err
	}
	current := filepath.Join(data, "current")
	_ = os.Remove(current + ".next")
	if err := os.Symlink(home, current+".next"); err != nil {
		return "", err
	}
	return bin, os.Rename(current+".next", current)
}

func write(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, content); err != nil {
		return errors.Join(err, file.Close())
	}
	return file.Close()
}
