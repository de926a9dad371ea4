"""Download the jars of Java programs with Maven, and compile the programs, once."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.missing import missing

FETCHED_S = 600
COMPILED_S = 600


@dataclass(frozen=True)
class Program:
    """The Java sources in a directory.

    Each artifact is group, name, version and classifier; jars in `further` are also on the class
    path.
    """

    home: Path
    sources: Path
    artifacts: tuple[tuple[str, str, str, str], ...]
    further: tuple[Path, ...] = ()

    def class_path(self) -> str:
        """Return the class path, after downloading and compiling missing files."""
        if not all(shutil.which(command) for command in ("java", "javac", "mvn")):
            missing("there is no JDK 17 with Maven on this machine: run `make jdk`")
        sources = sorted(self.sources.glob("*.java"))
        built = self._pom() + "".join(source.read_text() for source in sources)
        complete, libs, classes = self.home / "complete", self.home / "libs", self.home / "classes"
        class_path = ":".join((f"{classes}", f"{libs}/*", *map(str, self.further)))
        if not complete.exists() or complete.read_text() != built:
            shutil.rmtree(self.home, ignore_errors=True)
            self.home.mkdir(parents=True)
            (self.home / "pom.xml").write_text(self._pom())
            fetch = ("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={libs}")
            subprocess.run(fetch, cwd=self.home, check=True, timeout=FETCHED_S)
            command = ("javac", "-cp", class_path, "-d", str(classes), *map(str, sources))
            subprocess.run(command, check=True, timeout=COMPILED_S)
            complete.write_text(built)
        return class_path

    def _pom(self) -> str:
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>"
            f"{f'<classifier>{classifier}</classifier>' if classifier else ''}</dependency>"
            for group, name, version, classifier in self.artifacts
        )
        return (
            "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId>"
            "<artifactId>x</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
